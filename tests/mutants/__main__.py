"""Plant mutants and see who notices: `python -m tests.mutants [NAME …]`, all by default.

Tests that shall notice some run without a mutant first: one that fails then has noticed nothing.
Exits with 1 if a mutant survives.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from tests.mutants.planting import Seen, copy_tree, is_well, plant, why_not
from tests.mutants.table import MUTANTS


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("names", nargs="*", help="parts of names; all mutants where none is given")
    names = parser.parse_args().names
    chosen = [m for m in MUTANTS if not names or any(name in m.name for name in names)]
    survivors: list[str] = []
    before: dict[str, Seen] = {}
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        copy_tree(tree)
        for mutant in chosen:
            problem = why_not(mutant)
            if problem:
                print(f"CANNOT BE PLANTED  {mutant.name}: {problem}", flush=True)
                survivors.append(mutant.name)
                continue
            if mutant.tests not in before:
                before[mutant.tests] = is_well(mutant.tests, tree)
            if not before[mutant.tests].is_wanted:
                print(f"TESTS FAIL WITHOUT IT  {mutant.name}: {mutant.tests}", flush=True)
                print(before[mutant.tests].said)
                survivors.append(mutant.name)
                continue
            seen = plant(mutant, tree)
            word = "caught  " if seen.is_wanted else "SURVIVED"
            print(f"{word}  {mutant.name} ({seen.took_s:.1f} s)", flush=True)
            if not seen.is_wanted:
                survivors.append(mutant.name)
                print(seen.said)
    print(f"{len(chosen)} mutants, {len(survivors)} survived")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
