"""Parts of bench/serve: the comparison of this server with its peers."""
