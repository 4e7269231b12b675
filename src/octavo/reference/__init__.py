"""Attention over pages in plain PyTorch: the definition every kernel is held against, and the CPU path."""
