"""The Spark job: read a feed, clean it, quarantine what is wrong, merge the rest into datasets and a graph."""
