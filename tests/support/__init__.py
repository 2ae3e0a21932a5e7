"""What tests share: toys, factories, and programs that tests start in processes of their own."""
