import unittest

import durations


class TestParse(unittest.TestCase):
    def test_one_unit(self):
        self.assertEqual(durations.parse("90s"), 90)

    def test_several_units(self):
        self.assertEqual(durations.parse("1h30m5s"), 5405)

    def test_what_is_no_duration(self):
        with self.assertRaises(ValueError):
            durations.parse("soon")


class TestShow(unittest.TestCase):
    def test_largest_units_first(self):
        self.assertEqual(durations.show(5405), "1h30m5s")


if __name__ == "__main__":
    unittest.main()
