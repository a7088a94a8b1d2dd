"""What is a prefix on the disk worth, beside computing it and beside finding it in the pool?"""
