"""fsspec's file system for ``lodefs://REPO@REV/PATH``, which pandas and others use.

Install it with ``pip install lodefs[fsspec]``. fsspec finds it by its entry point.
"""

import fsspec

from lodefs.fs.filesystem import LodefsFileSystem as LodefsFileSystem
from lodefs.reading.urls import SCHEME

# From 0.3 on universal_pathlib splits paths by the rules of the file system, if that is loaded.
# Otherwise it uses other rules, which cut the first letter off each name.
fsspec.register_implementation(SCHEME, LodefsFileSystem, clobber=True)
