"""fsspec's file system for ``lodefs://REPO@REV/PATH``, and what pandas and others open by it.

Installed with ``pip install lodefs[fsspec]``; fsspec finds it by its entry point.
"""

import fsspec

from lodefs.fs.filesystem import LodefsFileSystem as LodefsFileSystem
from lodefs.reading.urls import SCHEME

# From 0.3 on universal_pathlib takes paths apart by the rules of the file system if it is among
# those that are loaded; else by others, which cut the first letter off each name.
fsspec.register_implementation(SCHEME, LodefsFileSystem, clobber=True)
