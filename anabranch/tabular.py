"""Tables, sizes and durations as text for people."""

from __future__ import annotations

from collections.abc import Sequence

Row = Sequence[object]


def table(title: str, heads: Sequence[str], rows: Sequence[Row]) -> str:
    """Columns as wide as they need; numbers stand to the right. Empty without rows."""
    if not rows:
        return ""
    texts = [list(map(str, row)) for row in rows]
    width = [max(map(len, column)) for column in zip(heads, *texts, strict=True)]
    numeric = [all(isinstance(row[k], int) for row in rows) for k in range(len(heads))]
    lines = [[head.rjust(w) if n else head.ljust(w) for head, w, n in zip(
        line, width, numeric, strict=True)] for line in (list(heads), *texts)]
    return "\n".join([title, *("  " + "  ".join(line).rstrip() for line in lines)])


def count(nbytes: int) -> str:
    """Bytes, short: `512 B`, `1.5 KB`, `12.0 MB`."""
    size = float(nbytes)
    for unit in ("B", "KB", "MB"):
        if size < 1000:
            return f"{size:.0f} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} GB"


def duration(seconds: float) -> str:
    """Seconds, short: `3.2 us`, `1.5 ms`, `2.0 s`."""
    for unit, scale in (("us", 1e-6), ("ms", 1e-3)):
        if seconds < 1000 * scale:
            return f"{seconds / scale:.1f} {unit}"
    return f"{seconds:.1f} s"
