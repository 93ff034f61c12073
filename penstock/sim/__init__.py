"""The simulator: the real vertices over a log in memory, in virtual time, while all else fails."""
