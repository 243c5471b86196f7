"""The notebooks in examples/ run from top to bottom, and draw what they say."""

from pathlib import Path

import pytest

from scripts import ROOT

nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
pytest.importorskip("ipykernel")


@pytest.mark.parametrize(("name", "pictures"), [("convert_your_own", 1), ("read_the_report", 3)])
def test_a_notebook_runs(name: str, pictures: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    monkeypatch.setenv("JUPYTER_PLATFORM_DIRS", "1")
    notebook = nbformat.read(ROOT / "examples" / f"{name}.ipynb", as_version=4)
    nbclient.NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(tmp_path)}}).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    assert sum("image/png" in output.get("data", {}) for output in outputs) == pictures
    assert any("text/html" in output.get("data", {}) for output in outputs)  # tables
    assert not [output for output in outputs if output.output_type == "stream" and output.name == "stderr"]
