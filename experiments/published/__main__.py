"""Command line of the study: compare with the published rows, or build the embedded profiles anew."""

from __future__ import annotations

import argparse
from pathlib import Path

import ssdsim.catalog
from experiments.published import profiles, report

PROFILES = Path(ssdsim.catalog.__file__).parent / "profiles"


def main() -> None:
    """Run the study (prints Markdown, saves CSV with `--out`), or `--build` the profiles from the reference data."""
    parser = argparse.ArgumentParser(prog="python -m experiments.published", description=main.__doc__)
    parser.add_argument("--out", type=Path, help="folder for the tables as CSV")
    parser.add_argument("--build", type=Path, metavar="DATA", help="folder of the reference data to build from")
    chosen = parser.parse_args()
    if chosen.build is not None:
        for path in profiles.write(chosen.build, PROFILES):
            print(path.name)
        return
    results = report.run()
    found = report.tables(results)
    print(report.markdown(found))
    print(report.remark(results))
    if chosen.out is not None:
        report.save(found, chosen.out)


if __name__ == "__main__":
    main()
