"""Plant mutants and see who notices: `python -m tests.mutants [NAME …]`, all by default.

Exits with 1 if one survives.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from tests.mutants.planting import copy_tree, plant, why_not
from tests.mutants.table import MUTANTS


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("names", nargs="*", help="parts of names; all mutants where none is given")
    names = parser.parse_args().names
    chosen = [m for m in MUTANTS if not names or any(name in m.name for name in names)]
    survivors: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        copy_tree(tree)
        for mutant in chosen:
            problem = why_not(mutant)
            if problem:
                print(f"CANNOT BE PLANTED  {mutant.name}: {problem}", flush=True)
                survivors.append(mutant.name)
                continue
            seen = plant(mutant, tree)
            word = "caught  " if seen.noticed else "SURVIVED"
            print(f"{word}  {mutant.name} ({seen.took_s:.1f} s)", flush=True)
            if not seen.noticed:
                survivors.append(mutant.name)
                print(seen.said)
    print(f"{len(chosen)} mutants, {len(survivors)} survived")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
