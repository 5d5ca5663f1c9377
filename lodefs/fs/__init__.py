"""fsspec's file system for ``lodefs://REPO@REV/PATH``, and what pandas and others open by it.

Installed with ``pip install lodefs[fsspec]``; fsspec finds it by its entry point.
"""

from lodefs.fs.filesystem import LodefsFileSystem as LodefsFileSystem
