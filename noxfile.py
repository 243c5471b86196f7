"""The tests under every supported version of Python: `nox`, or `nox -s tests-3.12 -- tests/snn`."""

import nox

nox.options.default_venv_backend = "venv"


@nox.session(python=["3.11", "3.12", "3.13"])
def tests(session: nox.Session) -> None:
    session.install("--constraint", "constraints.txt", "--editable", ".[dev]")
    session.run("python", "-m", "pytest", "-n", "auto", *session.posargs, env={"OMP_NUM_THREADS": "1"})
