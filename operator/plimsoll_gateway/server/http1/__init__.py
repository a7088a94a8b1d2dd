"""HTTP/1.1 on uvicorn's classes."""
