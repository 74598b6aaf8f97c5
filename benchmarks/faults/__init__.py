"""Campaign of faults on run folders: crashes, full disks, kills and damaged files; see `__main__`."""
