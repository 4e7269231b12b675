"""The pool of pages: which exist (allocator), which tokens they hold (prefix), who holds them (ledger),
their bytes (store), and how many a budget buys (sizing)."""
