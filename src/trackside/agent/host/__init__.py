"""What several sources of the host read alike: files of /proc and /sys, pressure, mounts that may never answer."""
