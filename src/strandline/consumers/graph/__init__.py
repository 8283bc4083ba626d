"""Graph algorithms whose results are kept: each is computed cold from all edges, or moved on by those that changed."""
