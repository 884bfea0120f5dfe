"""One file for each kind of target that a table may have."""

from temperance.apps.tables.kinds import classes as _classes  # noqa: F401  registers itself
from temperance.apps.tables.kinds import quantities as _quantities  # noqa: F401  registers itself
from temperance.apps.tables.kinds.base import KINDS, TableKind, flat, joined, kind_of, standard_error

__all__ = ["KINDS", "TableKind", "flat", "joined", "kind_of", "standard_error"]
