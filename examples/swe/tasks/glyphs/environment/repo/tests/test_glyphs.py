import unittest

import glyphs


class TestGlyphs(unittest.TestCase):
    def test_a_letter(self):
        self.assertEqual(glyphs.draw("L")[0], ".#......")

    def test_two_letters_stand_side_by_side(self):
        self.assertEqual(glyphs.draw("HL")[0], ".#....#..#......")

    def test_what_is_no_font(self):
        with self.assertRaises(ValueError):
            glyphs.load(b"PNG")


if __name__ == "__main__":
    unittest.main()
