"""A part of a report as a picture for the documentation: `report_picture.py page.html "#detections" out.jpg`."""

import argparse
import io
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from PIL import Image
from report.browser import chromium  # type: ignore[import-not-found]

WIDTH, HEIGHT = 1180, 1500


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("page", type=Path)
    parser.add_argument("part", help="the element, as a CSS selector")
    parser.add_argument("output", type=Path)
    parser.add_argument("--run", default="", help="JavaScript that prepares the page for the picture")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as profile, chromium(Path(profile)) as page:
        page.open(arguments.page.resolve(), width=WIDTH, height=HEIGHT)
        page.js(f"document.querySelector('header').style.position = 'static'; {arguments.run}")
        picture = Image.open(io.BytesIO(page.one(arguments.part).screenshot_as_png))
        picture.convert("RGB").save(arguments.output, quality=85, optimize=True)


if __name__ == "__main__":
    main()
