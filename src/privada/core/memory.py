"""How much memory this process may still take: what the machine has left, and what limits say."""

import os
from contextlib import suppress
from pathlib import Path

try:
    import resource
except ImportError:  # which Windows does not have
    resource = None  # type: ignore[assignment]

# Where the limit of a container is, and what it has taken, by version of control groups. Of that,
# files that are kept in memory count for nothing: they make room.
_GROUPS = (
    ("/sys/fs/cgroup", "memory.max", "memory.current", ""),
    ("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_"),
)


def available_memory() -> int | None:
    """Return how many bytes there are, about; None where that is not known.

    It is the least of what the machine has available and what the limits of the process and of its
    container leave.

    Example:
        >>> from privada.core.memory import available_memory
        >>> (available_memory() or 1) > 0
        True
    """
    found = [*_of_machine(), *_of_container(), *_of_process()]
    return max(0, min(found)) if found else None


def _of_machine() -> list[int]:
    with suppress(OSError, ValueError, IndexError):
        words = Path("/proc/meminfo").read_text().split()
        return [int(words[words.index("MemAvailable:") + 1]) << 10]
    with suppress(AttributeError, OSError, ValueError):
        return [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2]
    return []


def _of_container() -> list[int]:
    found = []
    for folder, limit, taken, prefix in _GROUPS:
        with suppress(OSError, ValueError, IndexError):  # "max" is no limit
            group = Path(folder)
            words = (group / "memory.stat").read_text().split()
            files = sum(
                int(words[words.index(f"{prefix}{kind}_file") + 1])
                for kind in ("active", "inactive")
            )
            used = int((group / taken).read_text()) - files
            found.append(int((group / limit).read_text()) - used)
    return found


def _of_process() -> list[int]:
    """Return what limits of the process leave, by its sizes in pages."""
    found: list[int] = []
    if resource is None:
        return found
    with suppress(OSError, ValueError, IndexError, AttributeError):
        sizes = list(map(int, Path("/proc/self/statm").read_text().split()))
        page = resource.getpagesize()
        for kind, size in ((resource.RLIMIT_AS, sizes[0]), (resource.RLIMIT_DATA, sizes[5])):
            limit = resource.getrlimit(kind)[0]
            if limit != resource.RLIM_INFINITY:
                found.append(limit - size * page)
    return found
