"""WebShop: a shop over a product catalogue, its search engine, its pages and its reward."""
