// Finds the packages where scripts/setup-clients installed them: beside the project, not inside it.
import { createRequire } from 'node:module'
import { pathToFileURL } from 'node:url'

const installed = createRequire(new URL('../../../.cache/node/package.json', import.meta.url))

/** A CommonJS package, or a file of one. */
export const required = name => installed(name)

/** An ES module package. */
export const imported = name => import(pathToFileURL(installed.resolve(name)).href)
