"""Load files into a table, each once, however often it is asked for.

Spark tasks import the readers in this package, so importing it loads nothing."""
