"""What attention needs of decodes, made on the device: what is new in kept tables, and these side by side."""
