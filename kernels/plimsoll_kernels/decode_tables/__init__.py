"""Computes the tables of decodes on the device: writes changes of block tables, and copies tables into rows."""
