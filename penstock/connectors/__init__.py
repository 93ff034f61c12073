"""Sources and sinks: where rows come from and where they go when it is not the log itself."""
