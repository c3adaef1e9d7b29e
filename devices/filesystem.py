"""The filesystem that a path lies on: is it a disk at all?"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from stat import S_ISREG

import psutil

MEMORY = frozenset({"tmpfs", "ramfs", "devtmpfs"})
NETWORK = frozenset(
    {"nfs", "nfs4", "cifs", "smb", "smb3", "smbfs", "afpfs", "webdav", "davfs", "davfs2", "ceph", "lustre"}
    | {"glusterfs", "beegfs", "9p", "virtiofs", "fuse.sshfs", "fuse.s3fs", "fuse.gcsfuse", "fuse.rclone"}
)  # 9p and virtiofs: a folder of the host, by a protocol


@dataclass(frozen=True, slots=True)
class Filesystem:
    kind: str  # "ext4", "tmpfs"; "" = the system does not say
    mount: Path
    remote: bool = False  # the system says so (Windows)

    @property
    def place(self) -> str:
        """Where its files are: "memory", "network" or "disk"."""
        if self.kind in MEMORY:
            return "memory"
        return "network" if self.remote or self.kind in NETWORK else "disk"


def filesystem_of(path: Path) -> Filesystem:
    """What `path` lies on. Raises OSError when there is no such file."""
    path = path.resolve(strict=True)
    found = Filesystem("", Path(path.anchor))
    for part in psutil.disk_partitions(all=True):  # in the order of mounting: the later one hides the earlier
        mount = Path(part.mountpoint)
        if path.is_relative_to(mount) and len(mount.parts) >= len(found.mount.parts):
            found = Filesystem(part.fstype.lower(), mount, "remote" in part.opts.split(","))
    return found


def largest_file(directory: Path, entries: int = 10_000) -> Path | None:
    """The largest file in a directory, or in those within it, of the first so many entries; None = there is
    none. What cannot be read is passed over, and so is what lies on another file system, which may be another
    disk, or what takes no room there, as /proc/kcore, which is no file."""
    best: tuple[int, Path] | None = None
    device = _device(directory)
    for folder, within, names in os.walk(directory):
        within[:] = [name for name in within if _device(Path(folder) / name) == device]
        for name in names:
            entries -= 1
            path = Path(folder) / name
            try:
                stat = path.stat()
                # By folders, as in a container the files of one file system may differ in this.
                elsewhere = path.is_symlink() and _device(path.resolve().parent) != device
            except (OSError, RuntimeError):  # RuntimeError: links that lead to each other
                continue
            real = S_ISREG(stat.st_mode) and getattr(stat, "st_blocks", 1) > 0
            if real and not elsewhere and (best is None or stat.st_size > best[0]):
                best = stat.st_size, path
        if entries < 0:
            break
    return best[1] if best else None


def _device(folder: Path) -> int | None:
    """None = it cannot be read."""
    try:
        return folder.stat().st_dev
    except OSError:
        return None
