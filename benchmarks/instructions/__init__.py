"""What does an instruction set make of a product?"""
