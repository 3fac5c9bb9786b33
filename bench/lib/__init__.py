"""Parts of the benchmark commands beside this directory."""
