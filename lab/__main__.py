"""The command line: `python -m lab list` and `python -m lab run CASE...`."""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
import time
from pathlib import Path

from lab.case import LabCase
from lab.cases import CASES
from lab.record import record
from lab.stage import RunFailed

SCENARIOS = Path(__file__).parent.parent / "tests" / "scenarios"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m lab", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("list", help="the cases, one a line")
    run = commands.add_parser("run", help="play cases and record their scenarios")
    run.add_argument("case", nargs="*", help="names as `list` prints them, or a family's folder")
    run.add_argument("--all", action="store_true", help="every case that can run here")
    run.add_argument("--to", type=Path, default=SCENARIOS, help="folder of the scenarios")
    tools = os.environ.get("SLURM_LAB_TOOLS")
    run.add_argument("--slurm-tools", type=Path, default=Path(tools) if tools else None)
    return parser.parse_args()


def selected_cases(args: argparse.Namespace) -> list[LabCase]:
    if args.all:
        return list(CASES)
    cases = []
    for name in args.case:
        matching = [case for case in CASES if name in (case.folder, case.name, case.family.lower())]
        if not matching:
            raise SystemExit(f"no case {name}: see `python -m lab list`")
        cases += matching
    return cases


def missing_needs(case: LabCase, slurm_tools: Path | None) -> list[str]:
    needs = []
    for need in case.needs:
        if need == "slurm":
            needs += [] if slurm_tools else ["slurm (set SLURM_LAB_TOOLS)"]
        elif importlib.util.find_spec(need) is None:
            needs.append(need)
    return needs


def run_cases(cases: list[LabCase], to: Path, slurm_tools: Path | None) -> int:
    failures = 0
    for case in cases:
        needs = missing_needs(case, slurm_tools)
        if needs:
            print(f"skip   {case.folder}: needs {', '.join(needs)}", flush=True)
            continue
        began = time.monotonic()
        try:
            record(case, to, slurm_tools)
        except RunFailed as error:
            failures += 1
            print(f"FAILED {case.folder}: {error}", flush=True)
        else:
            print(f"ok     {case.folder} ({time.monotonic() - began:.0f} s)", flush=True)
    return 1 if failures else 0


def main() -> int:
    args = arguments()
    if args.command == "list":
        for case in CASES:
            print(f"{case.folder:<44} {case.story.strip().splitlines()[0]}")
        return 0
    return run_cases(selected_cases(args), args.to, args.slurm_tools)


if __name__ == "__main__":
    sys.exit(main())
