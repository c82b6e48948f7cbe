"""What `spark-submit` is given: the command line of `python -m streaming`.

Three lines, so that it may be copied to wherever the driver runs: the package has the rest.
"""

from __future__ import annotations

import sys

if __name__ == "__main__":
    sys.path.pop(0)  # The folder of this file, whose modules are not to be seen as packages.
    from streaming.__main__ import main

    sys.exit(main())
