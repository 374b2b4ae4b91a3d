from crashing_agent import serve

if __name__ == "__main__":
    serve()
