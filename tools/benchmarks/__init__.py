"""What a turn costs, measured against what the same machine needs for nothing but the parts."""
