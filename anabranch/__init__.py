"""Anabranch: a compiler and runtime for neural networks. See README.md."""

__version__ = "0.1.0"
