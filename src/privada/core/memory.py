"""How much memory this process may still take: what the machine has left, and what limits say."""

import os
from contextlib import suppress
from pathlib import Path

try:
    import resource
except ImportError:  # which Windows does not have
    resource = None  # type: ignore[assignment]

# Where limits of control groups are, and the names of the limit, of what was taken, and of what
# counts files that are kept in memory: these make room. By the name of the kind of group.
_GROUPS = {
    "": ("/sys/fs/cgroup", "memory.max", "memory.current", ""),
    "memory": (
        "/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_",
    ),
}  # fmt: skip


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
    """Return what is left by the limits of the groups that this process is in."""
    found = []
    with suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, kind, group = line.split(":", 2)
            if kind in _GROUPS:
                root, *names = _GROUPS[kind]
                place = Path(root) / group.lstrip("/")
                for each in (place, *place.parents):
                    if each.is_relative_to(root):
                        found.extend(_of_group(each, *names))
    return found


def _of_group(group: Path, limit: str, taken: str, prefix: str) -> list[int]:
    with suppress(OSError, ValueError):  # "max" is no limit
        words = (group / "memory.stat").read_text().split()
        files = sum(
            int(words[words.index(f"{prefix}{kind}_file") + 1]) for kind in ("active", "inactive")
        )
        used = int((group / taken).read_text()) - files
        return [int((group / limit).read_text()) - used]
    return []


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
