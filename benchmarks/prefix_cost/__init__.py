"""What does prefix caching cost when nothing is ever shared?"""
