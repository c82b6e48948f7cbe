"""What all processes share: signals, threads, files, HTTP servers, Java."""
