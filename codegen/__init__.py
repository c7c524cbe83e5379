"""From the ops of one rank to kernel launches. `Launches` is all that the rest needs."""

if not __name__.startswith("anabranch."):
    raise ImportError(f"import anabranch.{__name__}, not {__name__} (README, 'Layout')")

from anabranch.codegen.c import prelude
from anabranch.codegen.emit import Launches, launches
from anabranch.ir.launch import LaunchSpec

PRELUDE = prelude()
"""C text that goes before every kernel."""

__all__ = ["PRELUDE", "LaunchSpec", "Launches", "launches"]
