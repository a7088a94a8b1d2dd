"""What tests of placement share: pools that carry plans out, and pools made up by hypothesis."""
