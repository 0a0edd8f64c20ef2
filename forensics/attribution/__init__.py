"""What explains an event: statistics, verdict, what to skip.

`attribute(Inputs(...))` gives the whole answer; `ranges(...)` says beforehand which steps it wants to see.
"""

from forensics.attribution.attribute import Attribution, attribute
from forensics.attribution.baseline import Ranges, ranges
from forensics.attribution.inputs import Inputs, Rules

__all__ = ["Attribution", "Inputs", "Ranges", "Rules", "attribute", "ranges"]
