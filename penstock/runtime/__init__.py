"""The run side: vertices, their inputs and outputs, recovery, and the host that steps them."""
