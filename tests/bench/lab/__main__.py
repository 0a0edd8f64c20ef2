"""`python -m lab OUT --seed N` (from tests/bench): write the cases of one seed; `--only TEXT` those whose name contains it."""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

from .cases import make, world
from .layout import write
from .plans import plans


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("out", type=Path)
    p.add_argument("--seed", type=int, required=True)
    p.add_argument("--only", default="")
    p.add_argument("--every", type=int, nargs=2, default=(0, 1), help="only cases N of every M")
    args = p.parse_args()
    w = world(args.seed, args.out.parent / "worlds")
    print(f"seed {args.seed}: {w.settings}, sources {w.sources}, base of {w.base} steps, twin {w.twin:.4f}", flush=True)
    for k, plan in enumerate(plans(args.seed, w.sources)):
        folder = args.out / f"s{args.seed}_{plan.name}"
        if args.only not in plan.name or k % args.every[1] != args.every[0] or (folder / "truth/truth.json").exists():
            continue
        start = time.process_time()
        made = make(w, plan)
        write(made, folder)
        said = json.dumps(made.truth["severity_on_clean_validation"])
        print(f"{folder.name:40} {plan.cls:16} {said} {time.process_time() - start:.0f} s", flush=True)


if __name__ == "__main__":
    main()
