"""Commands as the tests call them."""

from collections.abc import Callable

Run = Callable[..., tuple[int, str, str]]  # arguments -> exit code, standard output, standard error


def fails(result: tuple[int, str, str], reason: str) -> None:
    """Exit code 2, nothing on standard output, one line on standard error that gives the reason."""
    code, out, err = result
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert reason in err
