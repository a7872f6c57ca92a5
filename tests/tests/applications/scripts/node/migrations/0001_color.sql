ALTER TABLE `shop_task` ADD `color` text;--> statement-breakpoint
PRAGMA foreign_keys=OFF;--> statement-breakpoint
CREATE TABLE `__new_shop_project` (
	`id` integer PRIMARY KEY AUTOINCREMENT NOT NULL,
	`name` text DEFAULT 'new' NOT NULL
);
--> statement-breakpoint
INSERT INTO `__new_shop_project`("id", "name") SELECT "id", "name" FROM `shop_project`;--> statement-breakpoint
DROP TABLE `shop_project`;--> statement-breakpoint
ALTER TABLE `__new_shop_project` RENAME TO `shop_project`;--> statement-breakpoint
PRAGMA foreign_keys=ON;--> statement-breakpoint
CREATE INDEX `by_title` ON `shop_task` (`title`);
