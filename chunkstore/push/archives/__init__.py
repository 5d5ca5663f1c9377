"""Archives (tar, zip) whose members become files of a commit, without being unpacked on a disk."""
