"""What the unit tests share: the commands of `indexctl` are built once.

Typer builds all of them anew for each call, which takes longer than most of the calls.
"""

from __future__ import annotations

import functools

from typer import testing

testing._get_command = functools.cache(testing._get_command)
