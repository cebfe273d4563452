"""`make cluster-demo`: real jobs with injected faults on a real Slurm cluster, and the verdict on each.

    python -m lab.demo --trackside .venv/bin [--only NAME ...] [--keep DIR]

Needs the cluster's scripts (SLURM_LAB_TOOLS, see lab/README.md) and root, as slurmd does. Ends with a table; the
exit status is 0 only if every verdict is right.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from pathlib import Path
from types import FrameType

from lab.demo.faults import FAULTS
from lab.demo.outcome import summary_text, table
from lab.demo.show import Demo
from lab.demo.site import check, site
from lab.stage import RunFailed

TOOLS = Path(__file__).resolve().parents[3] / "shared" / "slurm"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m lab.demo", description="Real jobs, real faults, real verdicts.")
    names = [fault.name for fault in FAULTS]
    parser.add_argument("--only", nargs="+", choices=names, metavar="NAME", help=f"some of: {', '.join(names)}")
    parser.add_argument("--trackside", type=Path, default=Path(".venv/bin"), help="folder of the programs")
    parser.add_argument("--keep", type=Path, help="keep the files of agents, receiver and jobs in this folder")
    tools = os.environ.get("SLURM_LAB_TOOLS")
    parser.add_argument("--slurm-tools", type=Path, default=Path(tools) if tools else TOOLS)
    return parser.parse_args()


def stop_once(number: int, frame: FrameType | None) -> None:
    # A second signal must not cut the cleanup short.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise KeyboardInterrupt


def main() -> int:
    args = arguments()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop_once)
    chosen = [fault for fault in FAULTS if not args.only or fault.name in args.only]
    began = time.monotonic()

    def say(text: str) -> None:
        print(f"{time.monotonic() - began:4.0f} s  {text}", flush=True)

    try:
        tools, trackside = args.slurm_tools.resolve(), args.trackside.resolve()
        check(tools, trackside)
        with site(tools, trackside, args.keep, say) as demo_site:
            demo = Demo(demo_site, say)
            outcomes = demo.play(chosen)
            epilog_problems = demo.wait_epilog(outcomes)
    except RunFailed as error:
        print(f"cluster-demo: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("cluster-demo: stopped; all its processes have ended", file=sys.stderr)
        return 130
    right_count = sum(outcome.is_right for outcome in outcomes)
    print(f"\n{table(outcomes)}\n\n{summary_text(outcomes[0])}\n")
    for outcome in outcomes:
        if not outcome.is_right:
            print(f"{summary_text(outcome)}\n{outcome.output_tail}\n")
    for problem in epilog_problems:
        print(problem)
    print(f"{right_count} of {len(outcomes)} verdicts are right, after {time.monotonic() - began:.0f} s;", end=" ")
    print(
        "the verdicts of the epilog agree"
        if not epilog_problems
        else f"problems with the verdicts of the epilog: {len(epilog_problems)}"
    )
    return 0 if right_count == len(outcomes) and not epilog_problems else 1


if __name__ == "__main__":
    sys.exit(main())
