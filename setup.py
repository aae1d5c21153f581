"""Compiles the kernels; each may be missing, then its twin in Python runs."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

FOLDER = "src/pentalog/kernels/compiled"
KERNELS = (
    "crc32c",
    "buffers",
    "batch",
    "records",
    "produce",
    "cursus",
    "cursus_pages",
    "rustlog",
    "rustlog_answers",
    "columns",
    "fluvio",
    "joining",
    "leases",
    "blipmq",
    "blipmq_answers",
    "rows",
    "documents",
    "walks",
)


class BuildKernels(build_ext):
    """Says in one line which kernels could not be compiled, instead of failing."""

    def run(self) -> None:
        super().run()
        missing = [
            extension.name.rpartition(".")[2]
            for extension in self.extensions
            if not Path(self.get_ext_fullpath(extension.name)).exists()
        ]
        if missing:
            print(
                f"pentalog: could not compile {', '.join(missing)}: slower kernels in Python will"
                " run; install a C compiler and the headers of Python, then install again",
                file=sys.stderr,
            )


def kernels() -> list[Extension]:
    extensions = cythonize(
        [
            Extension(
                f"pentalog.kernels.compiled.{name}",
                [f"{FOLDER}/{name}.pyx"],
                include_dirs=[FOLDER],
                depends=[f"{FOLDER}/crc32c.h", f"{FOLDER}/walk.h", f"{FOLDER}/wire.h"],
                extra_compile_args=[] if os.name == "nt" else ["-O3"],
            )
            for name in KERNELS
        ],
        build_dir="build/cython",
        include_path=["src"],
        compiler_directives={
            "language_level": 3,
            "boundscheck": False,
            "wraparound": False,
            "cdivision": True,
            "embedsignature": True,
        },
    )
    for extension in extensions:
        # Given to Extension itself, this is lost in cythonize.
        extension.optional = True
    return list(extensions)


setup(ext_modules=kernels(), cmdclass={"build_ext": BuildKernels})
